class Grammars:
    def __init__(self, *a):
        pass
