"""An ordinary LangChain agent that books a trip."""
