"""The typed wire between api-frontend, engine-core and worker."""
