"""The API over HTTP: sockets, keys, clients that come and leave. What bodies and replies say is `exlchat.api`."""
