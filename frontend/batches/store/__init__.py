"""Files, batches and their answers in a database that several frontends share."""
