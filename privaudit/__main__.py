"""``python -m privaudit``: the command line, where the script is not on the path."""

from privaudit.cli.start import run

if __name__ == "__main__":
    run()
