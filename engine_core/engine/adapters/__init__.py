"""Which adapters may requests name, and which of them do the workers have?"""
