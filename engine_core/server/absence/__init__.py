"""How does an engine go on while it has no workers to step with, as they are lost or it sleeps?"""
