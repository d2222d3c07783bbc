"""The thread that calls the engine: loading, swapping, answers, questions."""
