"""Runs inside the user's process: standard library only, Python 3.8 and newer, silent on failure.

In the job it is loaded by path as ``_oomproof.agent`` (see site/sitecustomize.py), so that nothing of the job's own
environment is needed or hidden. Of oomproof only ``leaf``, which stands beside it, is imported here.
"""
