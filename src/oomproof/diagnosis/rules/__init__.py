"""One rule per file: ``weigh(case)`` gives weighted causes. Every file here is a rule, nothing else is to be told of it."""
