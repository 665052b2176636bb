"""Progressive rollouts of Knative Services: stages that move replicas and traffic."""
