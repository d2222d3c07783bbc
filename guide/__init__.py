"""How the bundled model is made: facts, corpus, training, evaluation. Not part of the installed package."""
