"""The LangChain adapter: real agents, real tools, real SQLite ledgers."""
