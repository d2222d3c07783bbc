"""Text into styled fragments, for the app, the line mode and pages: Markdown, themes, links, rows of tokens."""
