"""A trace collector that prints the name and request ID of each span it receives on port 4318."""

import gzip
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class TraceHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        self.send_response(200)
        self.end_headers()
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {each.key: each.value.string_value for each in span.attributes}
                    print("span", span.name, values.get("headgate.request_id"), flush=True)


if __name__ == "__main__":
    print("listening", flush=True)
    HTTPServer(("127.0.0.1", 4318), TraceHandler).serve_forever()
