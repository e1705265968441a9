"""What would an engine say on /v1/responses? The fake engine with the least of that interface."""

import json
from typing import Any

from tests.support.fake_engine import FakeEngine, Received
from tests.support.fake_http import Connection

DONE = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "error": None}


class RespondingEngine(FakeEngine):
    def _tell(self, connection: Connection, received: Received) -> None:
        if received.path != "/v1/responses":
            super()._tell(connection, received)
            return
        self.requests.append(received)
        whole = DONE | {"usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}}
        if not received.json.get("stream"):
            connection.answer(200, json.dumps(whole).encode())
            return
        events: list[dict[str, Any]] = [
            {"type": "response.created", "sequence_number": 0, "response": DONE | {"status": "in_progress"}},
            {"type": "response.output_text.delta", "sequence_number": 1, "delta": "word"},
            {"type": "response.completed", "sequence_number": 2, "response": whole},
        ]
        connection.head(200, "text/event-stream", length=None)
        for event in events:
            connection.chunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        connection.last_chunk()
