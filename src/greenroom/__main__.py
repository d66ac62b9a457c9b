"""``python -m greenroom`` is the command ``greenroom``."""

from .cli import main

if __name__ == "__main__":
    main()
