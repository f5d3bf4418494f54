"""The server on the driver and the workers' clients. All sockets are here, and nothing from the network is unpickled.

- protocol: the messages, their fields and arrays. wire: frames that carry them. lines: what surrounds a frame.
- server: HTTP and TCP, threads and connections. request_handler: one request, one reply.
- client: a worker's side. connections: HTTP or TCP under it, and under the clients of Elephas' servers.
- store: the state of a run that both modes share. membership: who has joined, leases, attempts, deadlines.
- round_store: synchronous rounds. quorum_store: those that end without stragglers. center_store: asynchronous commits.
- trial_reports: the reports of a search's trials. printed_lines: what functions on workers print.
- page_server: the pages that show fits, trials and members. faulty_client: faults on purpose.
- address, security, tls: where the server listens, the token, and encryption.
"""
