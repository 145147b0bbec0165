"""How do requests and their events travel over one WebSocket?"""
