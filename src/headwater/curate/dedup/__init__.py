"""Deduplication and decontamination: proposed by hashes, decided by exact comparison, every removal with evidence.

    from headwater.curate.dedup.files import dedup_files, decontaminate_files
    report = dedup_files(["web.jsonl.zst"], "out")

Layers, bottom first: `folding` (characters to classes and folded characters) · `tokens` (UTF-8 bytes to units) ·
`minhash`, `simhash` (keys that propose) · `compare` (exact scores and spans) · `runs` (keys on disk, sorted) ·
`stars` (pairs to compare; who stays) · `spool` (texts and ids on disk) · `engine` (documents) · `passages` (parts of
documents) · `benchmarks` (decontamination) · `rows` (JSON Lines in and out) · `files` (verbs on files).
"""
