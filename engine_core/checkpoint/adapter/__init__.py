"""What is an adapter's folder, as PEFT writes it, and can it be served?"""
