"""What agent, keeper and host side all need: standard library only, Python 3.8 and newer.

The one part of ours that ``agent`` and ``machine`` may import. Agent and keeper run without the installed package
around them: the agent finds this folder as ``_oomproof.leaf``, the keeper as ``oomproof.leaf``, both by path. Modules
here import only each other, keep ``typing`` to type checkers, and do nothing when imported: every Python of a job may load them.
"""
