"""The ledger: one atomic claim before a tool's body starts, one settle after it."""
