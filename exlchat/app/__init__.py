"""The program without a terminal: what is open, what is being answered, which model is loaded, what commands do."""
