"""What is being typed: files named in it, its history, its meaning, its length."""
