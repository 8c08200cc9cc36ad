"""What calls of language models use and cost: counts from any response, bounds from any request, prices offline."""
