"""The recording's tables. One SQLite file per attempt; times are CLOCK_BOOTTIME seconds, sizes bytes."""

from __future__ import annotations

VERSION = 1  # of the tables
_LARGEST = (1 << 63) - 1  # of SQLite's integers

TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS host (t REAL, mem_total INT, mem_available INT, mem_free INT,
    swap_total INT, swap_free INT, psi_some_us INT, psi_full_us INT);
CREATE TABLE IF NOT EXISTS job (t REAL, anon INT, shmem INT, file INT, swap INT, kernel INT,
    headroom INT, processes INT, shm_total INT, shm_free INT);
CREATE TABLE IF NOT EXISTS look (t REAL, source TEXT);
CREATE TABLE IF NOT EXISTS process (t REAL, pid INT, start INT, role TEXT, name TEXT,
    anon INT, shmem INT, file INT, swap INT, pss INT);
CREATE TABLE IF NOT EXISTS other_job (t REAL, pid INT, start INT, uid INT, name TEXT, managed INT, ram INT, swap INT);
CREATE TABLE IF NOT EXISTS gpu (t REAL, idx INT, used INT, total INT, job_used INT);
CREATE TABLE IF NOT EXISTS phase (t REAL, name TEXT, step INT, pid INT, anon INT, gpu INT);
CREATE TABLE IF NOT EXISTS event (t REAL, kind TEXT, text TEXT, data TEXT);
"""

INSERTS = {
    "host": "INSERT INTO host VALUES (?,?,?,?,?,?,?,?)",
    "job": "INSERT INTO job VALUES (?,?,?,?,?,?,?,?,?,?)",
    # the time of a row of job that is no sample: what the guard or the cgroup saw between two of them
    "look": "INSERT INTO look VALUES (?,?)",
    "process": "INSERT INTO process VALUES (?,?,?,?,?,?,?,?,?,?)",
    "other_job": "INSERT INTO other_job VALUES (?,?,?,?,?,?,?,?)",
    "gpu": "INSERT INTO gpu VALUES (?,?,?,?,?)",
    "phase": "INSERT INTO phase VALUES (?,?,?,?,?,?)",
    "event": "INSERT INTO event VALUES (?,?,?,?)",
}


def storable(value: object) -> object:
    """What SQLite takes: paths and arguments are bytes to the kernel, and a number no machine can hold says nothing."""
    if value is None or isinstance(value, float | bytes):
        return value
    if isinstance(value, int):
        return value if -_LARGEST <= value <= _LARGEST else None
    return str(value).encode("utf-8", "backslashreplace").decode()
