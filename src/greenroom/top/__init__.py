"""``greenroom top``: a live table of an agent's rooms. What is shown, how it is drawn, and the terminal are apart."""
