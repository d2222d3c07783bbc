"""Messages into prompt text and ids: templates, context, thoughts, where each reply stands."""
