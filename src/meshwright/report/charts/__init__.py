"""Charts: what one shows (`forms`), and how it is drawn as SVG."""
