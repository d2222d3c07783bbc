"""Pages on disk: a content-addressed store that knows nothing about models."""
