"""How pictures and the tour for the docs are made: the app on a stage, its rows of cells, and SVG of them."""
