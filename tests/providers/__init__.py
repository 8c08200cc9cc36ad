"""A provider of models on the loopback: OpenAI's and Anthropic's wire formats, scripted, with true books."""
