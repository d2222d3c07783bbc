"""Text <-> ids: tokenizers, whole characters out of tokens, chat templates of model folders."""
