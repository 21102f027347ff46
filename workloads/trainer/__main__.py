"""Entry point of `python -m trainer`."""

from trainer.main import main

if __name__ == "__main__":
    main()
