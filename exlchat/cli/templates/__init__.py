"""`exlchat template`: the prompt formats there are, what a prompt is exactly, formats of other programs."""
