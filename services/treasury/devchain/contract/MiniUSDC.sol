// SPDX-License-Identifier: MIT
pragma solidity 0.8.28;

/// A contract that checks signatures for itself (EIP-1271).
interface IERC1271 {
    function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4);
}

/// MiniUSDC is the dollar token of the dev chain and of tests: EIP-20 with 6 decimals and
/// EIP-3009 in both forms, over an EIP-712 domain. The form with one `bytes` signature
/// also accepts wallets that are contracts. It has no proxy, no pause and no blocklist, and
/// its whole supply exists from the start.
///
/// name and version are constants, so that the contract can be put into a genesis block
/// with little storage. genesis.go depends on the order of the state variables.
contract MiniUSDC {
    string public constant name = "USDC";
    string public constant version = "2";
    string public constant symbol = "USDC";
    uint8 public constant decimals = 6;

    uint256 public totalSupply; // slot 0
    mapping(address => uint256) public balanceOf; // slot 1
    mapping(address => mapping(address => uint256)) public allowance; // slot 2
    mapping(address => mapping(bytes32 => bool)) public authorizationState; // slot 3

    bytes32 private constant DOMAIN_TYPEHASH =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 public constant TRANSFER_WITH_AUTHORIZATION_TYPEHASH = keccak256(
        "TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    );
    bytes32 public constant RECEIVE_WITH_AUTHORIZATION_TYPEHASH = keccak256(
        "ReceiveWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    );
    bytes32 public constant CANCEL_AUTHORIZATION_TYPEHASH =
        keccak256("CancelAuthorization(address authorizer,bytes32 nonce)");
    /// Half of the order of secp256k1: a larger s is the second form of a signature.
    uint256 private constant HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0;

    event Transfer(address indexed from, address indexed to, uint256 value);
    event Approval(address indexed owner, address indexed spender, uint256 value);
    event AuthorizationUsed(address indexed authorizer, bytes32 indexed nonce);
    event AuthorizationCanceled(address indexed authorizer, bytes32 indexed nonce);

    constructor(address holder, uint256 supply) {
        totalSupply = supply;
        balanceOf[holder] = supply;
        emit Transfer(address(0), holder, supply);
    }

    function transfer(address to, uint256 value) external returns (bool) {
        move(msg.sender, to, value);
        return true;
    }

    function approve(address spender, uint256 value) external returns (bool) {
        allowance[msg.sender][spender] = value;
        emit Approval(msg.sender, spender, value);
        return true;
    }

    function transferFrom(address from, address to, uint256 value) external returns (bool) {
        uint256 allowed = allowance[from][msg.sender];
        require(allowed >= value, "MiniUSDC: transfer amount exceeds allowance");
        if (allowed != type(uint256).max) {
            allowance[from][msg.sender] = allowed - value;
        }
        move(from, to, value);
        return true;
    }

    /// DOMAIN_SEPARATOR is computed at each call, because the chain id of a genesis block is
    /// not known when the contract is compiled.
    function DOMAIN_SEPARATOR() public view returns (bytes32) {
        return keccak256(
            abi.encode(DOMAIN_TYPEHASH, keccak256(bytes(name)), keccak256(bytes(version)), block.chainid, address(this))
        );
    }

    function transferWithAuthorization(
        address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce,
        uint8 v, bytes32 r, bytes32 s
    ) external {
        transferWithAuthorization(from, to, value, validAfter, validBefore, nonce, abi.encodePacked(r, s, v));
    }

    function transferWithAuthorization(
        address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce,
        bytes memory signature
    ) public {
        bytes32 content = keccak256(
            abi.encode(TRANSFER_WITH_AUTHORIZATION_TYPEHASH, from, to, value, validAfter, validBefore, nonce)
        );
        useAuthorization(from, validAfter, validBefore, nonce, content, signature);
        move(from, to, value);
    }

    function receiveWithAuthorization(
        address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce,
        uint8 v, bytes32 r, bytes32 s
    ) external {
        receiveWithAuthorization(from, to, value, validAfter, validBefore, nonce, abi.encodePacked(r, s, v));
    }

    /// receiveWithAuthorization can only be called by the payee, so nobody can send the
    /// transaction of somebody else first.
    function receiveWithAuthorization(
        address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce,
        bytes memory signature
    ) public {
        require(to == msg.sender, "MiniUSDC: caller must be the payee");
        bytes32 content = keccak256(
            abi.encode(RECEIVE_WITH_AUTHORIZATION_TYPEHASH, from, to, value, validAfter, validBefore, nonce)
        );
        useAuthorization(from, validAfter, validBefore, nonce, content, signature);
        move(from, to, value);
    }

    function cancelAuthorization(address authorizer, bytes32 nonce, uint8 v, bytes32 r, bytes32 s) external {
        cancelAuthorization(authorizer, nonce, abi.encodePacked(r, s, v));
    }

    function cancelAuthorization(address authorizer, bytes32 nonce, bytes memory signature) public {
        require(!authorizationState[authorizer][nonce], "MiniUSDC: authorization is used or canceled");
        checkSignature(authorizer, keccak256(abi.encode(CANCEL_AUTHORIZATION_TYPEHASH, authorizer, nonce)), signature);
        authorizationState[authorizer][nonce] = true;
        emit AuthorizationCanceled(authorizer, nonce);
    }

    function useAuthorization(
        address from, uint256 validAfter, uint256 validBefore, bytes32 nonce, bytes32 content, bytes memory signature
    ) private {
        require(block.timestamp > validAfter, "MiniUSDC: authorization is not yet valid");
        require(block.timestamp < validBefore, "MiniUSDC: authorization is expired");
        require(!authorizationState[from][nonce], "MiniUSDC: authorization is used or canceled");
        checkSignature(from, content, signature);
        authorizationState[from][nonce] = true;
        emit AuthorizationUsed(from, nonce);
    }

    function checkSignature(address signer, bytes32 content, bytes memory signature) private view {
        bytes32 digest = keccak256(abi.encodePacked("\x19\x01", DOMAIN_SEPARATOR(), content));
        if (signer.code.length > 0) {
            (bool ok, bytes memory answer) =
                signer.staticcall(abi.encodeCall(IERC1271.isValidSignature, (digest, signature)));
            require(
                ok && answer.length >= 32
                    && abi.decode(answer, (bytes32)) == bytes32(IERC1271.isValidSignature.selector),
                "MiniUSDC: invalid signature"
            );
            return;
        }
        require(signature.length == 65, "MiniUSDC: invalid signature length");
        bytes32 r;
        bytes32 s;
        uint8 v;
        assembly {
            r := mload(add(signature, 32))
            s := mload(add(signature, 64))
            v := byte(0, mload(add(signature, 96)))
        }
        require(uint256(s) <= HALF_ORDER && (v == 27 || v == 28), "MiniUSDC: invalid form of a signature");
        address recovered = ecrecover(digest, v, r, s);
        require(recovered != address(0) && recovered == signer, "MiniUSDC: invalid signature");
    }

    function move(address from, address to, uint256 value) private {
        require(to != address(0), "MiniUSDC: transfer to the zero address");
        uint256 balance = balanceOf[from];
        require(balance >= value, "MiniUSDC: transfer amount exceeds balance");
        unchecked {
            balanceOf[from] = balance - value;
            balanceOf[to] += value; // totalSupply bounds every balance
        }
        emit Transfer(from, to, value);
    }
}

/// OwnedWallet is a wallet contract with one owner key, for tests of EIP-1271.
contract OwnedWallet {
    address public immutable owner;

    constructor(address owner_) {
        owner = owner_;
    }

    function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4) {
        if (signature.length == 65) {
            address signer = ecrecover(hash, uint8(signature[64]), bytes32(signature[0:32]), bytes32(signature[32:64]));
            if (signer != address(0) && signer == owner) {
                return IERC1271.isValidSignature.selector;
            }
        }
        return 0xffffffff;
    }
}
