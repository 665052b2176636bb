"""What a file says of a service in Consul's catalogue comes with its deployment, and goes with one."""

from __future__ import annotations

from farmd.deploy.spec import PortSpec
from store.services import Catalog
from tests.stateful.deploying import SECOND, Deploying, spec
from tests.stateful.scene import Scene

PORTS = [PortSpec(container=80)]


def test_a_file_says_how_a_service_is_found_and_takes_it_back(scene: Scene) -> None:
    deploying = Deploying(scene, farms=("ash",))
    found, said = Catalog(tags=["edge"]), spec(ports=PORTS, catalog=Catalog(tags=["edge"]))
    deploying.ended(deploying.deploy(said))
    assert deploying.service().catalog == found
    deploying.ended(deploying.deploy(spec(image=SECOND, ports=PORTS, catalog=found)))
    assert deploying.service().catalog == found
    deploying.ended(deploying.deploy(spec(image=SECOND, ports=PORTS)))
    assert deploying.service().catalog is None
