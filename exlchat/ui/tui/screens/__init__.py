"""Full screens and modal screens, one a file."""
