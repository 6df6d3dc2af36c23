"""`python -m posenc` is `posenc`."""

from posenc.cli import main

if __name__ == "__main__":
    main()
