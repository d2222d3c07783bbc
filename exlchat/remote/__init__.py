"""Models that somebody else's server runs: an `llm.port.Engine` over HTTP. No torch, and nothing of our engine."""
