"""What can be done, and what does it: keys, slash commands and palette entries lead here."""
