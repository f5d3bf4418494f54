"""elephas_like"""
