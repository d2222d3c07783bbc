"""The wire format of OpenAI's API without sockets: a JSON body -> requests to an engine, its events -> the reply."""
