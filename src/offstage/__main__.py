"""`python -m offstage`: the command line of an installation that has no `offstage` on its path."""

from offstage.testbeds.cli import main

if __name__ == "__main__":
    main()
