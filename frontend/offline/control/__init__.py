"""What may a script ask of its model beside outputs: searches, figures, caches, its end?"""
