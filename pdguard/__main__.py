"""`python -m pdguard` is the same as `pdguard`."""

from pdguard.cli.app import main

if __name__ == "__main__":
    main()
