"""Entry point of `python -m xpk_ray`."""

from xpk_ray.main import main

if __name__ == "__main__":
    main()
