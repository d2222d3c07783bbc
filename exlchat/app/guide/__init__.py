"""What the bundled guide answers: facts about the program, and the lookup of the one that a question is about."""
