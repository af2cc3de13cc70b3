"""Proofs: a signed bundle of a run or a call that anybody can verify, offline and years later.

``bundle`` makes one, ``verify`` judges one, ``keys`` and ``anchors`` are what stands outside the database.
"""
