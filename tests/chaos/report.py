from typing import Any
class Report:
    def __init__(self, **k: Any): self.k=k
    def __str__(self):
        c=self.k['calm']
        return f"{c.is_complete} {c.stream_s:.1f} {c.judgement.faults} exits {c.log.unexpected_exits} letters {sum(c.facts.letters.values())}"
