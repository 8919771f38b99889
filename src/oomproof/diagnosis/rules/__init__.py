"""One rule per file: ``weigh(case)`` gives weighted causes. A new rule is entered in ``registry.py``."""
